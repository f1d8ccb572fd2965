/// Runs async code from a coroutine, and suspends until it has ended.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/AsyncSnippets.swift -->
/// ```swift
/// let lengths = co_launch {
///   try words.map { word in try co_await { try await server.length(of: word) } }
/// }
/// ```
///
/// The code runs as a Task that prefers the executor of the coroutine's queue, or of the worker pool.
/// - The first part, up to the first suspension, runs at once on the coroutine's own stack. If the code never suspends,
///   the coroutine does not suspend either.
/// - The parts after a suspension run on the coroutine's queue, between its coroutines. The last part resumes the
///   coroutine. Only an actor with another executor makes a part run on another thread.
///
/// All parts, also the first one, are outside any coroutine: in them, functions that wait throw
/// ``CoroutineError/notInCoroutine``.
///
/// The Task gets the coroutine's task-locals and ``CoroutineLocal`` bindings, and the priority that corresponds to the
/// queue's quality of service; if the queue has none, the thread's.
///
/// If the coroutine is cancelled, the Task is cancelled, and the call throws at once, without waiting for the Task's
/// end. A CancellationError of the Task is thrown like any other error. If async code awaits a job by ``Job/value``
/// and nothing else waits for the job, cancelling that Task cancels the job.
///
/// - Throws: The error of `operation`; the cancellation error, without calling `operation` if the coroutine was
///   cancelled before; ``CoroutineError/notInCoroutine`` outside a coroutine.
@inlinable @discardableResult
@available(*, noasync, message: "call the code with `await`")
public func co_await<Output: Sendable>(_ operation: @escaping @Sendable () async throws -> Output) throws -> Output {
  try AsyncCall.outcome(toEnd: false) { call in
    Task.immediate(priority: call.priority, executorPreference: call.executor) {
      do {
        call.end(Result<Output, any Error>.success(try await operation()))
      } catch {
        call.end(Result<Output, any Error>.failure(error))
      }
    }
  }
}

/// Runs async code from a coroutine, and suspends until it has ended, even if the coroutine is cancelled meanwhile.
///
/// As ``co_await(_:)-(()->Output)``, but `operation` may use everything that the coroutine may use, also `inout`
/// variables and values that are not Sendable: the coroutine does not run until `operation` has ended.
///
/// ```swift
/// var buffer = Buffer()
/// try co_awaitToEnd { try await stream.read(into: &buffer) }
/// ```
///
/// If the coroutine is cancelled, the Task is cancelled, and the call continues to wait for its end. It returns or
/// throws the outcome of `operation`.
///
/// - Throws: The error of `operation`; the cancellation error, if the coroutine was cancelled before the call;
///   ``CoroutineError/notInCoroutine`` outside a coroutine.
@discardableResult
@available(*, noasync, message: "call the code with `await`")
public func co_awaitToEnd<Output>(_ operation: () async throws -> Output) throws -> Output {
  try withoutActuallyEscaping(operation) { operation in
    try withUnsafePointer(to: operation) { operation in
      // Sound because only the Task uses the function and its captures until the call has ended.
      nonisolated(unsafe) let operation = operation
      return try AsyncCall.outcome(toEnd: true) { call in
        Task.immediate(priority: call.priority, executorPreference: call.executor) {
          // The closure's last use of the function is over when `run` returns.
          call.end(await AsyncCall.run(operation))
        }
      }
    }
  }
}

extension AsyncCall {
  /// Calls `start`, which starts a Task that ends the call, outside the coroutine; suspends until then.
  @inlinable @inline(__always)
  static func outcome<Output>(toEnd: Bool, _ start: (AsyncCall) -> Task<Void, Never>) throws -> Output {
    var outcome: Result<Output, any Error>?
    try withUnsafeMutablePointer(to: &outcome) { address in
      let call = try begin(UnsafeMutableRawPointer(address), toEnd: toEnd)
      try call.wait(for: call.start { start(call) })
    }
    return try outcome.unsafelyUnwrapped.received()
  }

  /// Calls an operation that is in the coroutine's frame.
  @inline(never)
  fileprivate static func run<Output>(
    _ operation: UnsafePointer<() async throws -> Output>
  ) async -> Result<Output, any Error> {
    do {
      return .success(try await operation.pointee())
    } catch {
      return .failure(error)
    }
  }
}
