#if ServiceLifecycle
import Coroutine
import Dispatch
public import ServiceLifecycle

/// A service of swift-service-lifecycle that is a coroutine.
///
/// ```swift
/// let server = CoroutineService("server") {
///   try Server.run(.any(port: 8080)) { connection in … }
/// }
/// try await ServiceGroup(services: [server], gracefulShutdownSignals: [.sigterm], logger: logger).run()
/// ```
///
/// - At the graceful shutdown of the group, `co_isStopping` becomes true in the body's coroutine and in all that it has
///   launched in scopes, and `co_stopping` is settled. So `Server.run` and `ServerBootstrap.serve` stop accepting and
///   let their handlers finish. If the body has not ended after `drain`, it is cancelled.
/// - If the task that runs the service is cancelled, the body is cancelled at once.
///
/// Each call of ``run()`` launches the body anew.
public struct CoroutineService: Service {
  private let name: String
  private let drain: Duration
  private let body: @Sendable () throws -> Void

  /// Creates a service; its body runs on the shared scheduler when the group starts it.
  ///
  /// Any thread; does not suspend.
  /// - Parameters:
  ///   - name: The name of the coroutine.
  ///   - drain: The time in which the body may finish after a graceful shutdown has begun.
  ///   - body: Serves until it is told to stop. If it returns earlier, the group decides what follows.
  public init(_ name: String = "service", drain: Duration = .seconds(10), _ body: @escaping @Sendable () throws -> Void)
  {
    self.name = name
    self.drain = drain
    self.body = body
  }

  /// Runs the body in a coroutine, and returns when that has ended, also after a cancellation.
  ///
  /// - Throws: The error of the body. After a graceful shutdown a cancellation is none: the body was cancelled because
  ///   `drain` was over.
  public func run() async throws {
    let shutdown = Promise<Void>()
    let job = co_launch(name: name) { [name, drain, body] in
      var service: Job<Void>?
      do {
        try co_scope(failures: .isolated) { scope in
          let serving = scope.launch(name: name, body)
          service = serving
          let stop = scope.launch(name: "\(name), graceful shutdown") {
            try co_await(shutdown)
            scope.stop(within: drain)
          }
          defer { stop.cancel() }
          // The stop may cancel the scope. Its body still waits for the outcome: an error of the service is `run`'s.
          try co_shield { try serving.join() }
        }
      } catch is CancellationError where shutdown.isSettled && !co_isCancelled {
        // The drain was over; outside the scope, where only this coroutine's own cancellation shows.
      } catch {
        // A service may end its work when it is cancelled; its outcome is the result.
        guard co_isCancelled, let service else { throw error }
        try co_shield { try service.join() }
      }
    }
    let result = await withTaskCancellationOrGracefulShutdownHandlers {
      await withCheckedContinuation { continuation in
        _ = job.observe { continuation.resume(returning: $0) }
      }
    } onCancel: {
      job.cancel()
    } onGracefulShutdown: {
      shutdown.fulfill(())
    }
    try result.get()
  }

  /// Not `job.value`, which would return before the job has ended if the task is cancelled.
  private func withTaskCancellationOrGracefulShutdownHandlers<Output: Sendable>(
    _ operation: () async -> Output,
    onCancel: @escaping @Sendable () -> Void,
    onGracefulShutdown: @escaping @Sendable () -> Void
  ) async -> Output {
    await withTaskCancellationHandler {
      await withGracefulShutdownHandler(operation: operation, onGracefulShutdown: onGracefulShutdown)
    } onCancel: {
      onCancel()
    }
  }
}
#endif
