"""A stand-in for SGLang and vLLM with an exact token schedule and a log of what it truly did.

``python -m tests.fake_engine`` or ``python .../tests/fake_engine/__main__.py``, then ``sglang`` or ``vllm`` (left out:
told from the flags), then that engine's own command line. Behaviour comes from FAKE_* variables; an unknown one is an
error. An ``AT`` value is ``VALUE`` (always), ``VALUE@3``, ``VALUE@2,5`` or ``VALUE@4+``, several joined by ``;``. What
follows the @ counts generation requests of this launch, or launches (FAKE_COUNTER), from 1. ``MAP`` is ``KEY:NUMBER``,
several joined by ``;``.

Time: a request arrives at t0 (t0 of the truth log: when it was fully read). Decode step 0 ends prefill and is due at
t0 + TTFT; step i is due at t0 + TTFT + i * ITL on CLOCK_MONOTONIC whatever was late before. A step gives one token, or
several with speculative decoding. A chunk leaves when its last token is due.

=========================  ==========  ==============================================================================
variable (FAKE_ + name)    default     meaning
=========================  ==========  ==============================================================================
Speed
ITL_MS                     2           time of one decode step
TTFT_MS                    10          time of prefill, for a prompt of any length that is not cached
SLOWDOWN                   1           factor on decode speed: 0.9 gives 10 % fewer tok/s
TTFT_SLOWDOWN              1           factor on prefill speed
PREFILL_TOK_S              0           with it, prefill takes (prompt - cached) / this longer
CACHED_SPEEDUP             0.8         part of TTFT_MS that a wholly cached prompt saves
EFFECTS                                MAP of factors on decode speed: ``attention_backend=triton:0.9`` (as taken),
                                       ``NCCL_PROTO=Simple:0.7`` (environment), ``engine=vllm:1.3``,
                                       ``disable_custom_all_reduce:0.9`` (flag)
LAUNCH_FACTORS                         ``1,0.99,1.02``: factor on all speeds of the 1st, 2nd, ... launch, cycled
LAUNCH_CV                  0           or: lognormal factor drawn for each launch from SEED
REQUEST_CV                 0           lognormal factor on decode speed drawn for each request
SEED                       0           seed of every draw
WARMUP_REQUESTS            0           so many first requests are slower,
WARMUP_FACTOR              2           the first by this factor, the others ever less (geometrically)
DRIFT                      0           each request is slower than the one before by this fraction
STALL                                  AT ``MS:TOKEN``: a pause before token TOKEN (from 1; left out: the second)
LOCKSTEP                   0           all running requests advance at the same ticks, as in a batched engine
PER_STREAM                 0           in lockstep: each further stream makes a step longer by this fraction
Speculative decoding (on with the engine's own flags, or SPEC_ACCEPT)
SPEC_ACCEPT                0           tokens per verify step on average (2.5 when only flags turn it on)
SPEC_ACCEPT_BY                         MAP from draft model to tokens per verify step
SPEC_DRAFT                 0           drafted tokens per step; 0: as the flags say
SPEC_JITTER                0           standard deviation of tokens per step; 0: as even as can be
Shape of a stream
TOKENS_PER_CHUNK                       ``4`` or a cycled pattern ``1,4,2``; left out: a chunk a step or stream interval
EVENTS_PER_SEGMENT         1           so many events go in one write, when the last of them is due
SPLIT_EVENTS               1           so many writes make one event,
SPLIT_GAP_MS               0.3         this far apart
ROLE_CHUNK                 with_first  chat: role-only chunk ``with_first``, ``early`` (at t0) or ``none``
EMPTY_FIRST                0           an empty chunk at t0
LATE_HEADERS               0           HTTP headers only with the first chunk
USAGE                      as_asked    or ``none``, ``always``, ``in_last`` (in the last chunk, no chunk of its own)
USAGE_NULL                 0           ``"usage": null`` in every chunk (completions always have it)
USAGE_OFF_BY               0           added to completion_tokens: usage that lies
AFTER_FINISH_MS            0           an empty chunk so long after finish_reason
COMMENTS                   0           an SSE comment before every chunk
REASONING_TOKENS           0           chat: so many first tokens are reasoning,
REASONING_FIELD                        under this key (reasoning_content)
TOOL_CALL_TOKENS           0           chat: so many last tokens are arguments of a tool call
TOKEN_TEXT                             text of every token (``a``: retokenises shorter); left out: `` t<id>``
BLANK_EVERY                0           every n-th token has no text
RESPONSE_MODEL                         model named in responses
Broken requests
EOS_AT                                 AT: the output ends after so many tokens, ignore_eos or not (0: empty)
NATURAL_EOS                0           without ignore_eos the output ends after so many tokens (not before min_tokens)
TRUNCATE_AT                            AT: after so many tokens the connection is closed, without end mark
TRUNCATE_CLEAN             0           ... with a well-formed end of the HTTP body
RESET_AT                               AT: after so many tokens the connection is reset
ERROR_EVENT_AT                         AT: after so many tokens an error event ends the stream
GARBAGE_AT                             AT: after so many tokens an event that is no JSON ends the stream
SILENT_AT                              AT: after so many tokens nothing more comes, the connection stays
HTTP_ERROR                             AT: HTTP status instead of an answer
GENERATION_BROKEN          0           every generation is a 500 while /health stays 200
NUMBER_FROM_TOKENS         0           requests for fewer tokens have no ordinal (AT faults pass them by)
Start
START_S                    0           loading takes so long,
START_TICK_S               0.1         with a progress line this often,
START_SILENT               0           or without any
READY_S                    0           time from open port to ready; /health is 503 until then
JIT_CACHE                              folder: a library is loaded from there, compiled first where there is none
COLD                                   AT of launches, ``1``: it compiles its kernels, and vLLM's log tells of that
CRASH                                  AT of launches: oom, nccl, backend, arch, kernel, model, gated, port, module,
                                       usage, context, scheduler, segfault, illegal, silent, or the text to print
CRASH_CODE                 1           exit code (negative: signal) of CRASH; ``usage`` exits with 2
CRASH_AFTER_S              0           time before CRASH
HANG                                   AT of launches: no sign of progress for so many seconds
STRICT                     0           unknown flags and backends are usage errors
End
DIE                                    AT: the process ends after so many tokens of a request,
DIE_CODE                   -9          with this exit code (negative: signal),
DIE_TEXT                               after this text (or name of a CRASH)
DEAF                       0           SIGTERM and SIGINT are ignored
STOP_S                     0           an orderly end takes so long
CHILDREN                   0           worker processes; they end with an orderly parent and survive a killed one
CHILD_DEAF                 0           workers ignore SIGTERM, SIGINT and SIGHUP
ORPHANS                    0           deaf grandchildren in sessions of their own, parent gone
CHILD_LIFE_S               60          life of workers and orphans
SERVE_IN_CHILD             0           a child serves; its parent waits and hands signals down
LIFE_S                     600         the process ends by SIGALRM after so long
What the engine resolves to
REPLACE_BACKEND                        attention backend taken whatever was asked for
MAX_RUNNING                0           max running requests whatever was asked for (48: as in speculative mode)
CUSTOM_ALL_REDUCE_OFF      0           custom all-reduce switched off with a warning only
HIDE_INFO                  0           no /server_info
VERSION                                engine version
PREEMPTIONS                            AT: so many preemptions (retractions) are counted
QUEUE                                  AT: so many waiting requests are shown while the request runs
UNCAPTURED                             AT ``1``: the request's batches run outside captured graphs
NO_CACHE                   0           no prefix cache
ALWAYS_CACHED              0           fraction of every prompt reported (and prefilled) as cached
Log
HOSTILE_LOG                0           ANSI escapes, HTML, ::error:: lines, invalid UTF-8, an endless line
LOG_SECRETS                0           the API key and secret variables are printed
Truth
TRUTH                                  file: a JSON line per generation request that has ended
COUNTER                                file that counts launches (one an engine with ``{engine}`` in its name);
                                       without it every launch is the first
LAUNCH_LOG                             file: a JSON line per start (pid, ppid, port, argv, key variables)
PIDS_FILE                              file: ``main PID``, ``child PID``, ``orphan PID`` lines
=========================  ==========  ==============================================================================

A truth record: ``request`` id, ``number``, ``launch``, ``pid``, ``path``, ``stream``, ``prompt_tokens``,
``cached_tokens``, ``max_tokens``, ``tokens`` given, ``end`` (ok, the fault's name, or client gone), ``finish``, ``t0``,
``start`` (when it left the queue), ``ttft_s``, ``step_s``, and ``chunks``: [due, intended write, actual write, tokens],
all on CLOCK_MONOTONIC in seconds. It is written before the end mark of its stream.
"""
