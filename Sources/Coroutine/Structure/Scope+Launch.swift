public import Dispatch

extension Scope {
  /// Launches a child, as ``co_launch(on:name:stack:start:file:line:_:)-(DispatchQueue?,_,_,_,_,_,_)`` does.
  ///
  /// In a cancelled scope, the child's body never runs. The captures of such a body are released when its queue comes to
  /// the child, which may be after the scope's end. Does not suspend; any thread. Traps if the scope has ended.
  @inlinable @discardableResult
  public func launch<Success: Sendable>(
    on queue: DispatchQueue? = nil,
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    let job = Job(
      scheduler: Launch.scheduler(for: queue),
      name: name,
      stack: stack,
      launchSite: LaunchSite(file: file, line: line),
      body: body
    )
    launch(job, holding: queue)
    return job
  }

  /// Launches a child on any ``LaunchTarget``, as on a queue.
  ///
  /// In a cancelled scope, the child's body never runs. Does not suspend; any thread. Traps if the scope has ended.
  @inlinable @discardableResult @_disfavoredOverload
  public func launch<Success: Sendable>(
    on target: some LaunchTarget,
    name: String? = nil,
    stack: StackSize = .standard,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: sending @escaping () throws -> Success
  ) -> Job<Success> {
    let destination = target._destination
    let job = Job(
      scheduler: destination.forLaunch,
      name: name,
      stack: stack,
      launchSite: LaunchSite(file: file, line: line),
      body: body
    )
    launch(job, holding: destination.anchor)
    return job
  }
}
