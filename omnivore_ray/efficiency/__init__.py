"""The paper's models of time and progress: numpy in, numpy out, nothing else imported."""
