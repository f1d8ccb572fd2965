internal import CCoroutine
public import Dispatch

// The creation of promises. Callbacks are in Promise+FromCallback.swift, and timers in Promise+Time.swift.

extension Promise {
  /// Creates a pending promise, and a resolver that settles it.
  ///
  /// The resolver is used once, on any thread. If it is released unused, the promise rejects with
  /// ``CoroutineError/abandoned``. `onCancel` is called once if the promise is cancelled, and released when it settles.
  public static func pending(
    onCancel: (@Sendable () -> Void)? = nil,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> (promise: Promise, resolver: Resumer<Success>) {
    let promise = Promise(file: file, line: line)
    promise.onCancel = onCancel
    return (promise, Resumer(PromiseTarget(promise)))
  }

  /// Runs `body` at once, on the caller, and returns a promise that is settled with its result or error.
  public static func trying(file: StaticString = #fileID, line: UInt = #line, _ body: () throws -> Success) -> Promise {
    Promise(settled: Result { try body() }, LaunchSite(file: file, line: line))
  }

  /// Runs `body` at once, on the caller, and returns the promise that it returns.
  ///
  /// If `body` throws, the call returns a promise that is rejected with the error.
  public static func trying(file: StaticString = #fileID, line: UInt = #line, _ body: () throws -> Promise) -> Promise {
    do {
      return try body()
    } catch {
      return .failure(error, file: file, line: line)
    }
  }

  /// Runs `body` as a block of `queue`, where it may block, and returns a promise for its result or error.
  ///
  /// If the promise is cancelled before the block begins, `body` never runs. In a forked child whose parent had used
  /// the runtime or Dispatch, the promise rejects with ``CoroutineError/afterFork``.
  public static func running(
    on queue: DispatchQueue,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable () throws -> Success
  ) -> Promise {
    if ForkedChild.refuses(CCO_USES_QUEUES) { return .failure(CoroutineError.afterFork, file: file, line: line) }
    let promise = Promise(file: file, line: line)
    // The work is the block, which checks whether the promise is pending.
    promise.onCancel = {}
    queue.async { if promise.isPending { promise.settle(Result { try body() }, fromOutside: true) } }
    return promise
  }

  /// Runs async code as a Task, and returns a promise for its result or error.
  ///
  /// Cancelling the promise cancels the Task. The Task sees the current task-locals and ``CoroutineLocal`` bindings.
  /// In a forked child whose parent had used the runtime or Dispatch, the promise rejects with
  /// ``CoroutineError/afterFork``.
  public static func task(
    priority: TaskPriority? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ operation: @escaping @Sendable () async throws -> Success
  ) -> Promise {
    if ForkedChild.refuses(CCO_USES_QUEUES) { return .failure(CoroutineError.afterFork, file: file, line: line) }
    let task = SetOnce<Task<Void, Never>>()
    let cancel: @Sendable () -> Void = { task.value?.cancel() }
    return Promise(onCancel: cancel, file: file, line: line) { done in
      let started = LocalBinding.carried {
        Task(priority: priority) {
          do {
            done.resume(try await operation())
          } catch {
            done.fail(error)
          }
        }
      }
      task.set(started)
    }
  }
}

extension Promise where Success == Void {
  /// Fulfils the promise.
  ///
  /// Returns false if it was settled before.
  @discardableResult public final func fulfill() -> Bool { fulfill(()) }
}
