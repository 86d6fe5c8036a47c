"""Novel things, raccoons, edges and run time of a detector."""
