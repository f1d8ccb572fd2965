internal import CLinux
import Coroutine

/// Since when a connection has waited to be served.
struct ConnectionAge: Sendable {
  private let since: UInt64

  /// Counts from the peer's last segment, if the system knows it, or from now.
  ///
  /// A connection that waits in the backlog while the server is at its limit has received its request, if at all, as
  /// its last segment. The system's clock has milliseconds, or less.
  init(of connection: Connection) {
    let now = Self.clock
    since = now - min(now, Self.timeInBacklog(connection))
  }

  var now: Duration {
    let now = Self.clock
    return .nanoseconds(Int64(clamping: now - min(now, since)))
  }

  /// A world's own clock, not that of one of its hosts: the time of the arrival is one of the world, too.
  private static var clock: UInt64 {
    if Simulated.current == nil { return CallerClock.now }
    return SimulatedWorld.current?.now ?? CallerClock.now
  }

  private static func timeInBacklog(_ connection: Connection) -> UInt64 {
    if let simulated = connection.socket.simulated as? any SimulatedStream {
      return clock - min(clock, simulated.connected)
    }
    guard connection.isTCP, let silence = connection.withNumber({ clinux_silence($0) }) else { return 0 }
    return UInt64(max(0, silence)) * 1_000_000
  }
}
