extension Scope {
  /// Launches a child on the thread of a ``CoroutineHost``, as
  /// ``co_launch(on:name:stack:start:file:line:_:)-(HostedScheduler,_,_,_,_,_,_)`` does.
  ///
  /// In a cancelled scope, the child's body never runs. Does not suspend; any thread. Traps if the scope has ended.
  @discardableResult
  public func launch<Success: Sendable>(
    on host: HostedScheduler,
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    let job = Job(
      scheduler: host.forLaunch,
      name: name,
      stack: stack,
      launchSite: LaunchSite(file: file, line: line),
      body: body
    )
    launch(job, on: nil)
    return job
  }
}
