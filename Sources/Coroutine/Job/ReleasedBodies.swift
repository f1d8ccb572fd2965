import Glibc

// The release of bodies that never run.
//
// Such a body may hold the last reference of another job that has not begun, the body of that one the last reference of
// a third, and so on: `next = co_launch(start: .lazy) { try last.join() + 1 }` in a loop. If each were released inside
// of the release of the one before, a long chain would overflow the stack. Handlers of promises that will not run hold
// resumers of further promises in the same way, which a release abandons. So a release inside of another one leaves
// its body on a list, and the outermost release takes one after the other from there.
//
// A release runs deinits, which are users' code and may wait. Then other coroutines run on this thread, and the one
// that waits may go on on another thread. So a list belongs to the flow that has made it, and a flow that finds another
// one's list in its thread's place begins its own:
// - Only the owner adds to a list, and only before it has set `isOver`.
// - Who finds a list of which it is the owner is the flow that has made it, or a later job in the same cell. That job
//   has got the cell after the flow has given it back, so it sees `isOver`.
// - A list that a flow has left behind on another thread stays there, empty, until the next one takes its place.

/// The bodies and handlers that are to be released by the outermost release of a flow.
final class ReleasedBodies {
  private var bodies: [Unmanaged<AnyObject>] = []
  /// The job that runs the outermost release; nil for code of a thread outside of any.
  private let owner: JobRef?
  private var isOver = false

  private init(_ owner: JobRef?) { self.owner = owner }

  /// Releases an object that holds a body: at once, or within the release that this call is inside of.
  static func release(_ body: Unmanaged<AnyObject>) {
    let owner = Carrier.current?.pointee.job
    if let outer = current, outer.owner == owner, !outer.isOver { return outer.bodies.append(body) }
    let list = ReleasedBodies(owner)
    list.bodies.append(body)
    while let next = list.bodies.popLast() {
      // Each time, because the release before may have waited, and have moved to another thread.
      list.enter()
      next.release()
    }
    list.isOver = true
    if current === list { Self.replace(with: nil) }
  }

  // MARK: The place of a thread

  /// Nil if the process has no key left: then releases nest.
  private static let key: pthread_key_t? = {
    var key = pthread_key_t()
    let code = pthread_key_create(&key) { $0.map { Unmanaged<ReleasedBodies>.fromOpaque($0).release() } }
    return code == 0 ? key : nil
  }()

  private static var current: ReleasedBodies? {
    key.flatMap { pthread_getspecific($0) }.map { Unmanaged<ReleasedBodies>.fromOpaque($0).takeUnretainedValue() }
  }

  private func enter() { if Self.current !== self { Self.replace(with: self) } }

  private static func replace(with list: ReleasedBodies?) {
    guard let key else { return }
    let former = pthread_getspecific(key)
    let reference = list.map { Unmanaged.passRetained($0) }
    if pthread_setspecific(key, reference?.toOpaque()) != 0 {
      reference?.release()
    } else if let former {
      Unmanaged<ReleasedBodies>.fromOpaque(former).release()
    }
  }
}

/// Holds a body for `ReleasedBodies`, which does not know its type.
final class HeldBody<Body> {
  private let body: Body
  init(_ body: consuming Body) { self.body = body }
}
