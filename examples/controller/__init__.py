"""A controller that hands out work over HTTP, and workers that outlive it or not.

    cd examples
    python -m controller.app --work A,B,C               # as before there was recovery: no ids, nothing is refused
    python -m controller.app --work A,B,C --recover     # with a fence and an agreement
    python -m controller.client --url http://127.0.0.1:PORT --worker w0
    python -m controller.canary                         # save while work is out, kill everybody, go on, compare

`app.py` is the controller: one counter of completions, one queue of work, and what each worker owns. `client.py` is a
worker. `canary.py` joins them with two ranks that train. They need `starlette` and `hypercorn` besides milepost.

What a worker says                     what changes                              what it hears
POST /register   worker, metadata      the worker is known and owns nothing      200 and the execution id to report
POST /rollout    worker, id            the first of the queue is the worker's    200 and the item, or null
POST /completion worker, id, item      the counter is one more                   200
POST /end        worker, id            what it owned is the head of the queue    200
GET  /state                            nothing                                   200 and all of it

1. An execution id is made at each start and told at registration. A report with another one, or with none, hears 410
   Gone before anything else of it is looked at: counter, queue and ownership are what they were, to the byte.
2. A worker registers with the metadata of the checkpoint that it restored. Where they are not exactly those of the
   controller it hears 409 Conflict and the names of the keys that differ, never a value. The two cannot both be
   right, so the controller ends once it has answered, with exit status 3; whoever runs it decides.
3. A body that is too large, no JSON, or not of the shape above hears 400 and why.
4. Without `--recover` there is no id and no agreement: reports count with or without one, as they always did.
"""
