"""From result folders to tables, figures and verdicts.

``load.load`` reads runs, ``metrics`` computes, ``tables`` and ``figures`` show, ``claims`` judges the paper's
numbers, ``conditions`` checks what the runs need for that, ``report.write`` puts all of it into one page.
"""
