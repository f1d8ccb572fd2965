import Synchronization

/// Runs async code as a Task from a coroutine, and suspends until the Task has ended.
///
/// The Task gets the coroutine's task-locals, and the priority of the thread that runs the coroutine at this moment.
/// The priority of the coroutine's queue (its quality of service) is not passed on. If it matters, `operation` starts a
/// `Task(priority:)` and awaits it.
///
/// If the coroutine is cancelled, the Task is cancelled, and the call throws at once, without waiting for the Task's
/// end. A CancellationError of the Task is thrown like any other error. Throws ``CoroutineError/notInCoroutine``
/// outside a coroutine.
public func co_await<Output: Sendable>(_ operation: @escaping @Sendable () async throws -> Output) throws -> Output {
  let (_, job) = try Carrier.requireJob()
  try Host.requireReal(job) { "a Task" }
  let task = SetOnce<Task<Void, Never>>()
  let cancel: @Sendable () -> Void = { task.value?.cancel() }
  return try co_suspend(onCancel: cancel) { (done: Resumer<Output>) in
    task.set(
      Task {
        do {
          done.resume(try await operation())
        } catch {
          done.fail(error)
        }
      }
    )
  }
}
