import Synchronization

/// Runs async code from a coroutine: as a Task, with the coroutine's task-locals and the thread's priority, and
/// suspends until it has ended.
///
/// The Task gets the priority of the thread that runs the coroutine at this moment. The priority of the coroutine's queue
/// (its quality of service) is not passed on; where it matters, `operation` starts a `Task(priority:)` and awaits it.
///
/// Cancelling the coroutine cancels the Task and throws at once; what the Task still does is not waited for. If the
/// Task throws CancellationError, that is thrown like any other error. Off a coroutine
/// ``CoroutineError/notInCoroutine``.
public func co_await<Output: Sendable>(_ operation: @escaping @Sendable () async throws -> Output) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  let host = job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.host }
  let task = SetOnce<Task<Void, Never>>()
  let cancel: @Sendable () -> Void = { task.value?.cancel() }
  return try co_suspend(onCancel: cancel) { (done: Resumer<Output>) in
    host.beginOutsideWork()
    task.set(
      Task {
        do {
          done.resume(try await operation())
        } catch {
          done.fail(error)
        }
        host.endOutsideWork()
      }
    )
  }
}
