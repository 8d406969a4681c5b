"""A method as a recipe of five parts."""
