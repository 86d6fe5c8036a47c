"""One page of HTML, and tables in the terminal, from the results of studies."""
