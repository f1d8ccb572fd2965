/// The world's end of a simulated connection: the other socket of the pair, and the times at which its bytes arrive.
///
/// The program's descriptor is a real socket, one of a pair, so every system call that works with bytes works with it.
/// No poller watches it: its events come from `WatchedDescriptor.arrived`. Used on the thread of its world, except for
/// `closed`.
package protocol SimulatedEnd: AnyObject, Sendable {
  /// The error number with which every further call fails; 0 if there is none.
  var failure: Int32 { get }
  /// Called after each system call in the direction.
  func used(_ direction: WatchedDescriptor.Direction)
  /// Called once, when the descriptor has been closed, on any thread; at the latest in the deinit of its owner.
  func closed()
}

extension WatchedDescriptor {
  /// Records that the direction may be ready, and wakes the waiters.
  package func arrived(_ direction: Direction) { self.direction(direction).happened(use.generation, sticks: true) }
}
