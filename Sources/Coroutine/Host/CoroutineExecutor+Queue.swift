public import Dispatch

extension CoroutineExecutor {
  /// Creates an executor of `queue`, which it keeps alive.
  ///
  /// A concurrent queue counts as one serial worker of it, as for
  /// ``co_launch(on:name:stack:start:file:line:_:)-(DispatchQueue?,_,_,_,_,_,_)``. Never suspends; any thread.
  public convenience init(_ queue: DispatchQueue) { self.init(QueueHost.scheduler(for: queue), queue) }
}
