/// What stands behind a descriptor of a simulated world: the other end of its pair of sockets, and when what is there
/// arrives.
///
/// The descriptor is real, one of a pair of sockets, so every system call that works with bytes works with it; only no
/// poller has it. Its events come from `WatchedDescriptor.arrived`. Used on the thread of its world, but for `closed`.
package protocol SimulatedEnd: AnyObject, Sendable {
  /// The error number that every further call gets; 0 if there is none.
  var failure: Int32 { get }
  /// Called after each system call in the direction.
  func used(_ direction: WatchedDescriptor.Direction)
  /// Called once, when the descriptor has been closed; at the latest in its deinit.
  func closed()
}

extension WatchedDescriptor {
  /// Notes that a try may find something, and wakes the waiters.
  package func arrived(_ direction: Direction) { self.direction(direction).happened(use.generation, sticks: true) }
}
