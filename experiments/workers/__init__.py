"""Workers that do the jobs of a sweep: this process, others beside it, or those of a Ray or Dask cluster."""
