// What the library knows of Swift's Tasks: the parts of them that workers run, and those that wait for a worker. A part
// is what runs between two suspensions.
//
// Of a Task that is suspended Swift tells an executor nothing: the reports have it again once it can go on. A default
// actor takes its Tasks' parts in jobs of its own, which have no number; neither have those that only resume a Task,
// as that of `Task.yield`.

extension CoroutineRuntime.Snapshot {
  /// A part of a Task that a worker runs, or that waits for one.
  ///
  /// Tasks that prefer ``WorkerPoolExecutor`` have such parts, and all others once
  /// ``CoroutineRuntime/runTasksOnWorkers()`` is in effect. What a suspended Task waits for, Swift does not tell.
  public struct SwiftTask: Sendable, Codable {
    /// The lower 32 bits of the Task's number, as Swift's debugger shows it; nil for a part of an actor, or one that
    /// only resumes a Task.
    public var id: UInt32?
    /// Whether it runs; false if it waits for the worker.
    public var isRunning: Bool
    /// The label of the worker.
    public var scheduler: String
  }

  /// Those of all workers, the running ones first; of each worker the first sixteen that wait.
  ///
  /// None in a simulated world, whose runs must not depend on what is outside.
  static func swiftTasks() -> [SwiftTask] {
    if LiveJobs.isInWorld { return [] }
    var tasks: [SwiftTask] = []
    SchedulerRegistry.visitAll { tasks += swiftTasks(of: $0) }
    return tasks.filter(\.isRunning) + tasks.filter { !$0.isRunning }
  }

  private static func swiftTasks(of scheduler: Scheduler) -> [SwiftTask] {
    let label = scheduler.label
    func task(_ number: UInt32, isRunning: Bool) -> SwiftTask {
      SwiftTask(id: number == 0 ? nil : number, isRunning: isRunning, scheduler: label)
    }
    let running = scheduler.runningSwiftTask.map { [task($0, isRunning: true)] } ?? []
    guard scheduler.swiftJobsWaiting > 0 else { return running }
    let (waiting, count) = scheduler.swiftTasksWaiting
    return running + (0..<count).map { task(waiting[$0], isRunning: false) }
  }
}

// MARK: - In words

extension Scheduler {
  /// The Swift job that runs here: `Swift Task 7's job`; nil if none does.
  var swiftJobInWords: String? {
    runningSwiftTask.map { $0 == 0 ? "a Swift Task's job" : "Swift Task \($0)'s job" }
  }

  /// The line of a report about the Swift jobs that wait for this worker; nil if none does.
  var swiftJobsLine: String? {
    let count = swiftJobsWaiting
    guard count > 0 else { return nil }
    let (waiting, _) = swiftTasksWaiting
    let numbers = waiting.indices.map { waiting[$0] }.filter { $0 != 0 }.map(String.init)
    let others = numbers.count < count ? ", …" : ""
    let known = numbers.isEmpty ? "" : " (Tasks \(numbers.joined(separator: ", "))\(others))"
    return "jobs of Swift Tasks that wait for \(label): \(count)\(known)"
  }
}
