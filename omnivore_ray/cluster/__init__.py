"""The Ray side: devices as actors, the parameter server, and the fleet that runs requests."""
