internal import CCoroutineRuntime

// A process that was created by fork() has one thread. The threads that ran schedulers, timers, the pool for blocking
// work and the poller of descriptors stayed in the parent; so did the holders of locks (the C core repairs its own
// locks, see its Fork.c). A job launched here would wait for ever. So the first launch or wait ends the child, with a
// sentence that says what to do.
//
// Not so in a child of a process that had not used the runtime, which may use it as any process. Fork.c has the states.
// The first use is the first of
//   - a launch, in any mode, and a HostedScheduler;
//   - the scheduler of a queue: for an executor, or a handler that runs on a queue;
//   - a handler without a queue that begins to run, a timer of a promise;
//   - a Swift job or a sleep that goes to the worker pool: by WorkerPoolExecutor, or where Tasks run on the workers;
//   - a promise for a block of a queue, or for a Task;
//   - a signal that is handled, and a simulated world.
// Everything else that the library makes needs one of these: blocking calls and waits for descriptors are made in
// coroutines. Each notes the use before it takes a lock. Generators, channels, promises, locks, dumps, and sockets and
// listeners that no coroutine has waited for, are data, which a child inherits whole.
//
// In a child that may use the runtime, but whose parent had used Dispatch, the worker pool works, and the first launch
// on a queue ends the child.
//
// No hot path of coroutines tests for a forked child: fork has taken the thread out of the coroutine that it ran, so a
// wait is outside a coroutine, and only then asks (`Carrier.outside`). Inside a coroutine `Launch.scheduler` returns
// before the test. A launch from outside tests one word, which is set in every process that has launched before. A part
// of a Task, and a handler, test at their ends (`mayGoOn`). Generators work, because they need no thread but the
// caller's.

enum ForkedChild {
  /// Whether this is the child of a process that had used the runtime.
  static var isHere: Bool { cco_forked() == CCO_FORKED_USED }

  /// Notes that the process is about to use threads, or queues; ends a forked child that does not have them.
  @inline(__always)
  static func use(_ what: cco_use) { if !cco_uses(what), !cco_begin_use(what) { end() } }

  /// The same for threads: a job of a Task, or its sleep, goes to a worker.
  @inline(__always)
  static func useThreads() { use(CCO_USES_THREADS) }

  /// Notes a use without which a forked child can go on, so that it has no effect there.
  @inline(__always)
  static func noteUse() { if !cco_uses(CCO_USES_THREADS) { _ = cco_begin_use(CCO_USES_THREADS) } }

  /// Ends the child of a process that had used the runtime: it is about to wait for what only the parent has.
  static func mayWait() { if isHere { end() } }

  /// Returns in the process whose thread this is, and ends a child that was forked inside of a part of a Task, or of a
  /// handler: what waits behind that is the parent's.
  ///
  /// Called after each part. A lookup of a thread-local, because nothing else there tells a child.
  @inline(__always)
  static func mayGoOn() { if Carrier.current == nil { endAfterPart() } }

  @inline(never)
  private static func endAfterPart() -> Never {
    misuse(
      "a forked child has returned from a part of its parent's Task, or from a handler; call exec or _exit in the child"
    )
  }

  @inline(never)
  private static func end() -> Never {
    misuse(
      "this process is a forked child, and the threads that run coroutines stayed in its parent: fork before the first "
        + "launch, handler, executor or signal (co_signals, dumpOnSignal), and before any use of Dispatch or Tasks; or "
        + "call exec or _exit in the child"
    )
  }
}
