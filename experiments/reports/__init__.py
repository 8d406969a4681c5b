"""Pages, figures and sentences for people."""
