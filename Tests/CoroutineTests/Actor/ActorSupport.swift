import CoroutineTesting

@testable import Coroutine

/// Lets all ready coroutines run, until none is ready.
func settle() throws {
  if World.current != nil { return try settleWorld() }
  for _ in 0..<100 { try co_yield() }
}

/// A supervised actor that writes `NAME begins LIFE`, its notes, and `NAME ends` into `trace`.
extension Supervisor {
  func tracing(
    _ name: String,
    _ trace: Trace,
    restart: RestartPolicy = .onFailure,
    mailbox: Channel<Order>.Capacity = .unbounded,
    cleanup: Gate? = nil
  ) -> ActorRef<Order> {
    let lives = Locked(0)
    return actor(name: name, mailbox: mailbox, restart: restart) { mailbox in
      let life = lives.withLock {
        $0 += 1
        return $0
      }
      trace("\(name) begins \(life)")
      defer {
        if let cleanup { try? co_shield { try cleanup.pass() } }
        trace("\(name) ends")
      }
      while let order = try mailbox.receive() {
        switch order {
        case .note(let text): trace("\(name): \(text)")
        case .fail(let label): throw Oops(label)
        case .finish: return
        case .hold(let gate): try gate.pass()
        case .life(let reply): reply(life)
        }
      }
    }
  }
}

extension ActorEnd {
  /// `NAME EXIT`.
  var text: String {
    let how =
      switch exit {
      case .stopped: "stopped"
      case .cancelled: "cancelled"
      case .failed(let error): "failed \(CoroutineTests.name(of: error))"
      }
    return "\(name ?? "?") \(how)"
  }
}
