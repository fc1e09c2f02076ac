"""Stored episodes as a dataset for other programs: columns, Parquet files, a data card."""
