"""Recurrent networks on the torques of real arms."""
