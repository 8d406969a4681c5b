"""Reports for people: pages, tables, figures and sentences."""
