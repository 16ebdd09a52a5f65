"""The auditor's side: it has the truth, runs attacks beside it, and writes down what came back.

Nothing is imported here, so that a report can read records (:mod:`leakscope.audit.record`) without loading torch.
"""
