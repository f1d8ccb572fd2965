import Coroutine

/// Tells every listener that a feed has changed.
///
/// A listener has a channel of its own. The channel holds at most one signal, which stands for all changes since the
/// listener has received the last one; the listener reads the states in the library. So no reader of feeds waits for a
/// slow listener, memory is bounded, and the latest state of each feed reaches every listener.
final class News: Sendable {
  private struct Listeners {
    var last = 0
    var channels: [Int: Channel<Void>] = [:]
  }

  private let listeners = ThreadMutex(Listeners())

  /// Signals a change; called after the library has it.
  func publish() {
    let channels = listeners.withLock { Array($0.channels.values) }
    for channel in channels { _ = channel.trySend(()) }
  }

  /// Runs `body` with a channel that signals all changes from now on.
  func listening<Output>(_ body: (Channel<Void>) throws -> Output) rethrows -> Output {
    let channel = Channel<Void>(.dropOldest(1))
    let number = listeners.withLock { listeners in
      listeners.last += 1
      listeners.channels[listeners.last] = channel
      return listeners.last
    }
    defer { listeners.withLock { _ = $0.channels.removeValue(forKey: number) } }
    return try body(channel)
  }

  /// The number of listeners.
  var count: Int { listeners.withLock { $0.channels.count } }
}
