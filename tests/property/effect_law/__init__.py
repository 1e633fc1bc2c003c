"""The law of effects: random programs with random histories have each effect happen as often as it is wanted.

A case is a program (`programs`), a policy, and a history: processes killed at any request to the vendor or any database
operation, lost answers, and then `invoke(None)`, the same input, a new message, `update_state`, `bulk_update_state`,
time travel, a fork, a human's answer or none. `life` acts it in forked processes, `vendor` counts in a file.

The oracle (`oracle`) says what is wanted from the program, the inputs and the states that callers saw. It never reads
the effect log. An input wants what the program does with it, besides what the checkpoint has already. So what a crash
kept from the state is wanted once, and what was delivered is wanted once more. Of branches of the history with
on_fork="replay", the one that wants most counts; with "new", each adds what it did.

A case obeys the law if

- the vendor's count is what is wanted. If a branch was abandoned before its end, it lies between what finished branches
  received and what the abandoned one wanted besides;
- each result names the order of its caller, and no two callers on one branch have one receipt;
- the thread can be finished, by `invoke(None)` and truthful decisions. Only on_fork="raise" and arguments that cannot
  be hashed may stop it, with their typed errors; and on_undelivered="raise" or a duplicate_window of 0, if something
  took place whose result no state has. With on_undelivered="ask", a human answers that it is the same request;
- a model behind EffectMiddleware sees an answer right after each of its tool calls, as providers demand.

Left out, because it is a matter of opinion what is wanted then:

- arguments that are chosen again, by a human or at random, on a fork or in a run that starts afresh: another order;
- effects with an own request whose body also makes inner effects, and a `verify` that only knows the former;
- on_fork="new" together with crashes: whether the branch that crashed counts depends on when it did;
- policies under which a vendor that ignores keys may get a request twice by design;
- updates of a state before its input was taken in: they take the input's place;
- on_undelivered="new": how much a step did before it was abandoned depends on when that was;
- on_fork="ask", scope="step", scope="global" and key=: other tests cover them;
- two processes on one thread at a time, stateful subgraphs, durability "exit", tools with streams or Commands.
"""
