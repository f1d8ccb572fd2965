#if NIO
public import Coroutine
public import NIOCore

// `co_launch`, `Scope.launch` and `co_switch` for event loops. They are functions of their own, because `any EventLoop`
// cannot conform to `LaunchTarget`.

/// Launches a coroutine on the thread of `loop`, where it takes turns with the loop's handlers.
///
/// Any thread; does not suspend. The body starts inside this call only if `start` is immediate and the caller is on the
/// loop's thread; on any other thread an immediate start is a queued one. The coroutine keeps the thread until it
/// waits, for 250 µs at most if other coroutines are ready, so it must not block or compute for long; use `co_blocking`
/// for that. A coroutine that is woken on the loop's own thread continues in the same tick of the loop.
///
/// When the loop is shut down, its live coroutines are cancelled with `EventLoopError.shutdown`, and the shutdown waits
/// for their ends. By then their channels are closed, and the loop accepts no calls of other threads. If the loop was
/// shut down before, the job fails with `EventLoopError.shutdown`, and `body` never runs.
///
/// On an `EmbeddedEventLoop` the coroutine runs when that loop is run; launch on its thread only.
@discardableResult
public func co_launch<Success: Sendable>(
  on loop: any EventLoop,
  name: String? = nil,
  stack: StackSize = .standard,
  start: StartMode = .queued,
  file: StaticString = #fileID,
  line: UInt = #line,
  _ body: sending @escaping () throws -> Success
) -> Job<Success> {
  let coroutines = LoopTable.coroutines(of: loop)
  var start = start
  if start == .immediate {
    // The body may use the loop's channels from its first line on.
    if loop.inEventLoop { coroutines.openNow() } else { start = .queued }
  }
  return co_launch(on: coroutines.scheduler, name: name, stack: stack, start: start, file: file, line: line, body)
}

/// Continues the running coroutine on the thread of `loop`.
///
/// Suspends, as `co_switch(to:)` to a queue does. If it is already there, it goes to the back of the ready queue. If
/// the coroutine is cancelled before it has arrived, it throws where it was, although the loop may be blocked; if it is
/// cancelled as it arrives, it throws on the loop. Throws `EventLoopError.shutdown` if the loop was shut down: as a
/// coroutine that was launched there, it is cancelled then. Throws `CoroutineError.notInCoroutine` outside a coroutine.
@available(*, noasync, message: "use a Task that prefers the loop's `coroutineExecutor`")
public func co_switch(to loop: any EventLoop) throws {
  try co_switch(to: LoopTable.coroutines(of: loop).scheduler)
}

extension Scope {
  /// Launches a child on an event loop's thread, as ``co_launch(on:name:stack:start:file:line:_:)``.
  ///
  /// In a cancelled scope, the child's body never runs. Any thread; does not suspend. Traps if the scope has ended.
  @discardableResult
  public func launch<Success: Sendable>(
    on loop: any EventLoop,
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    let scheduler = LoopTable.coroutines(of: loop).scheduler
    return launch(on: scheduler, name: name, stack: stack, file: file, line: line, body)
  }
}

extension EventLoop {
  /// An executor that runs the jobs of Tasks on this event loop's thread, between its coroutines.
  ///
  /// ```swift
  /// Task(executorPreference: loop.coroutineExecutor) { await serve() }
  /// ```
  ///
  /// Any thread; never suspends. The Tasks must end before the loop is shut down: the shutdown does not wait for them,
  /// and what is left of them runs on another thread.
  public var coroutineExecutor: CoroutineExecutor { CoroutineExecutor(LoopTable.coroutines(of: self).scheduler) }

  /// Launches a coroutine on this event loop's thread: what ``co_launch(on:name:stack:start:file:line:_:)`` does.
  @discardableResult
  public func co_launch<Success: Sendable>(
    name: String? = nil,
    stack: StackSize = .standard,
    start: StartMode = .queued,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    CoroutineNIO.co_launch(on: self, name: name, stack: stack, start: start, file: file, line: line, body)
  }
}
#endif
