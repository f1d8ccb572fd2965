internal import CCoroutine

/// A Task from which other Tasks inherit task-locals and priority while it waits or is suspended.
package struct TaskContext: @unchecked Sendable {
  // Sound because the address is compared and stored only; `inherit` says when it may be used.
  private let task: UnsafeMutableRawPointer?

  /// The Task of the calling code; outside a Task, a context that passes nothing on.
  package static var current: TaskContext { TaskContext(task: cco_current_task()) }

  /// Calls `body`, which begins Tasks that inherit this Task's task-locals and priority.
  ///
  /// Called in a coroutine, while the Task waits or is suspended. `body` must not suspend, except inside of the Tasks
  /// that it begins.
  package func inherit<R>(_ body: () throws -> R) rethrows -> R {
    let outer = cco_exchange_task(task)
    defer { _ = cco_exchange_task(outer) }
    return try body()
  }
}
