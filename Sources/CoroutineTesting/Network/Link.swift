import Coroutine

/// One direction between two hosts.
final class Link {
  struct Ends: Hashable {
    let from: String
    let to: String
  }

  var latency: ClosedRange<Duration> = .zero ... .zero
  var isCut = false
  /// The number of datagrams in sixteen that are lost.
  var lost = 0

  init() {}

  /// Draws whether the next datagram is lost.
  ///
  /// The choice 0 means that it arrives, unless all datagrams are lost.
  func drawLoss(_ world: SimulatedWorld) -> Bool { lost == 16 || (lost > 0 && world.choose(16) >= 16 - lost) }

  /// Draws the latency of the next message.
  func draw(_ world: SimulatedWorld) -> Duration {
    let width = latency.upperBound - latency.lowerBound
    return width == .zero ? latency.lowerBound : latency.lowerBound + width * world.choose(5) / 4
  }
}
