#if NIO
import Coroutine
import NIOConcurrencyHelpers
import NIOCore

/// The state that the channels of one server share.
///
/// Several event loops accept channels, while the server's coroutine ends the service on another thread.
///
///   SERVING -- waitForChannels --> ENDING: admits no channel
///
/// Invariants
///  1. The state and the list of admitted channels are under one lock. A channel is admitted only while SERVING, and is
///     in `live` from then until its `Admission` is released. The scope of the handlers ends after `live` is empty, so
///     no channel's coroutine is launched in a scope that has ended.
///  2. Only the body of its coroutine holds an admission. So the admission is released when the body has returned or
///     thrown, and also if the body never runs, because the scope was cancelled, the loop was shut down or no stack was
///     left. Then the admission closes the channel, which nothing else would.
///  3. The channels that are told to quiesce are those in the list when ENDING begins: all that were admitted and have
///     not ended.
final class ChannelService: Sendable {
  private struct State {
    var isServing = true
    var last = 0
    /// The admitted channels.
    var channels: [Int: any NIOCore.Channel] = [:]
  }

  private let state = NIOLockedValueBox(State())
  private let live = WaitGroup()
  private let onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)?

  init(_ onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)?) { self.onError = onError }

  /// An admitted channel.
  private final class Admission: Sendable {
    private let number: Int
    private let channel: any NIOCore.Channel
    private let service: ChannelService
    /// Set by the coroutine, which closes the channel itself.
    private let isServed = NIOLockedValueBox(false)

    init(_ number: Int, _ channel: any NIOCore.Channel, _ service: ChannelService) {
      self.number = number
      self.channel = channel
      self.service = service
    }

    func begin() { isServed.withLockedValue { $0 = true } }

    deinit {
      if !isServed.withLockedValue({ $0 }) { channel.close(promise: nil) }
      let removed = service.state.withLockedValue { $0.channels.removeValue(forKey: number) }
      // The last reference to a channel is released outside the lock.
      withExtendedLifetime(removed) {}
      service.live.done()
    }
  }

  /// Prepares an accepted channel, on its event loop; its coroutine is launched in `handlers` when it is active.
  func accept<Inbound: Sendable, Outbound: Sendable>(
    _ channel: any NIOCore.Channel,
    into handlers: Scope,
    _ configure: @Sendable (any NIOCore.Channel) throws -> Void,
    _ handle: @escaping @Sendable (NIOCoroutineChannel<Inbound, Outbound>) throws -> Void
  ) throws {
    do {
      try configure(channel)
      let connection = try NIOCoroutineChannel<Inbound, Outbound>(wrapping: channel)
      connection.handler.onActive = { [self] in launch(connection, handlers, handle) }
    } catch {
      onError?(error, channel)
      throw error
    }
  }

  private func launch<Inbound: Sendable, Outbound: Sendable>(
    _ connection: NIOCoroutineChannel<Inbound, Outbound>,
    _ handlers: Scope,
    _ handle: @escaping @Sendable (NIOCoroutineChannel<Inbound, Outbound>) throws -> Void
  ) {
    let channel = connection.channel
    guard let admission = admit(channel) else { return channel.close(promise: nil) }
    handlers.launch(on: channel.eventLoop, name: "connection") { [self] in
      // The closure holds the only reference to the admission.
      defer { withExtendedLifetime(admission) {} }
      admission.begin()
      do {
        try handle(connection)
        // An error here concerns writes whose results the handler did not wait for.
        try? connection.close()
      } catch {
        channel.close(promise: nil)
        // The server's cancellation and the shutdown of the loop are no errors of the connection.
        if co_isCancelled, isCancellation(error) { return }
        guard let onError else { throw error }
        onError(error, channel)
      }
    }
  }

  private func admit(_ channel: any NIOCore.Channel) -> Admission? {
    let number: Int? = state.withLockedValue { state in
      guard state.isServing else { return nil }
      // Under the lock, so that `waitForChannels` waits for this channel.
      live.add()
      state.last += 1
      state.channels[state.last] = channel
      return state.last
    }
    return number.map { Admission($0, channel, self) }
  }

  private func isCancellation(_ error: any Error) -> Bool {
    error is CancellationError || error as? EventLoopError == .shutdown
  }

  /// Admits no more channels, tells the pipelines of the others to finish, and suspends until their coroutines have
  /// ended.
  ///
  /// Called in a coroutine, in the body of the handlers' scope or beside it; only the first call tells the pipelines.
  func waitForChannels() throws {
    let channels = state.withLockedValue { state in
      defer { state.isServing = false }
      return state.isServing ? state.channels.sorted { $0.key < $1.key }.map(\.value) : []
    }
    // The loop of a channel that is closed may have been shut down, and must not be called then.
    for channel in channels where channel.isActive {
      channel.pipeline.fireUserInboundEventTriggered(ChannelShouldQuiesceEvent())
    }
    try live.wait()
  }
}
#endif
