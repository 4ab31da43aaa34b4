"""The door: machines that join a run over HTTPS, on nobody's word."""
