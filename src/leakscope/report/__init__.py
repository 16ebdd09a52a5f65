"""Pictures and tables for people, made from stored records alone: nothing in here imports torch."""
