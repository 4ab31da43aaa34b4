"""Games as data: records, batches, their verification, the ledger that counts them, and games read from files."""
