#if NIO
import Coroutine
import NIOConcurrencyHelpers
import NIOCore

/// What the channels of one server share.
///
/// Channels are accepted on several event loops, while the server ends on a thread of its own.
///
///   SERVING -- end --> DRAINING, no channel is admitted any more -- the time is over --> CANCELLING
///
/// Invariants
///  1. The state and the list of places are under one lock. A channel is admitted only while SERVING, and is in `live`
///     from then until its `Place` is released, so the end waits for each admitted channel.
///  2. A place is held by the body of its coroutine and by nothing else. So it goes when the body has returned or
///     thrown, and also if the body never runs: the loop was shut down, or there was no stack.
///  3. A coroutine's job is added to the list after its launch. If CANCELLING has begun by then, the adding thread
///     cancels it; otherwise the end does. If the place is gone by then, nothing is added.
final class ChannelService: Sendable {
  private enum Phase { case serving, draining, cancelling }

  private struct State {
    var phase = Phase.serving
    var last = 0
    /// The coroutines of admitted channels; nil while one is being launched.
    var jobs: [Int: AnyJob?] = [:]
  }

  private let state = NIOLockedValueBox(State())
  private let live = WaitGroup()
  private let onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)?

  init(_ onError: (@Sendable (any Error, any NIOCore.Channel) -> Void)?) { self.onError = onError }

  /// An admitted channel.
  private final class Place: Sendable {
    let number: Int
    private let service: ChannelService

    init(_ number: Int, _ service: ChannelService) {
      self.number = number
      self.service = service
    }

    deinit {
      service.state.withLockedValue { _ = $0.jobs.removeValue(forKey: number) }
      service.live.done()
    }
  }

  /// Prepares an accepted channel, on its event loop; its coroutine is launched when it is active.
  func accept<Inbound: Sendable, Outbound: Sendable>(
    _ channel: any NIOCore.Channel,
    _ configure: @Sendable (any NIOCore.Channel) throws -> Void,
    _ handle: @escaping @Sendable (NIOCoroutineChannel<Inbound, Outbound>) throws -> Void
  ) throws {
    do {
      try configure(channel)
      let connection = try NIOCoroutineChannel<Inbound, Outbound>(wrapping: channel)
      connection.handler.onActive = { [self] in launch(connection, handle) }
    } catch {
      onError?(error, channel)
      throw error
    }
  }

  private func launch<Inbound: Sendable, Outbound: Sendable>(
    _ connection: NIOCoroutineChannel<Inbound, Outbound>,
    _ handle: @escaping @Sendable (NIOCoroutineChannel<Inbound, Outbound>) throws -> Void
  ) {
    let channel = connection.channel
    guard let place = admit() else { return channel.close(promise: nil) }
    let number = place.number
    let job = channel.eventLoop.co_launch(name: "connection") { [self] in
      // The place's reference must be this closure's, and go with it.
      defer { withExtendedLifetime(place) {} }
      do {
        try handle(connection)
        // What the handler has not heard of, it did not ask for.
        try? connection.close()
      } catch {
        channel.close(promise: nil)
        // The server's own cancellation is no error of the connection, and neither is the end of the loop.
        if co_isCancelled, isCancellation(error) { return }
        guard let onError else { throw error }
        onError(error, channel)
      }
    }
    // Outside of the lock: a cancel may start a drain.
    if add(job, number) { job.cancel() }
  }

  private func admit() -> Place? {
    let number: Int? = state.withLockedValue { state in
      guard state.phase == .serving else { return nil }
      // Under the lock, so that the end waits for it.
      live.add()
      state.last += 1
      state.jobs[state.last] = .some(nil)
      return state.last
    }
    return number.map { Place($0, self) }
  }

  /// Adds the job of a place, and returns whether it must be cancelled.
  private func add(_ job: AnyJob, _ number: Int) -> Bool {
    state.withLockedValue { state in
      guard state.jobs[number] != nil else { return false }
      state.jobs[number] = job
      return state.phase == .cancelling
    }
  }

  private func isCancellation(_ error: any Error) -> Bool {
    error is CancellationError || error as? EventLoopError == .shutdown
  }

  /// Admits no more, waits for the coroutines, and cancels those that last longer than `drain`.
  ///
  /// Called once, in a coroutine, inside a shield.
  func end(after drain: Duration) {
    state.withLockedValue { $0.phase = .draining }
    try? co_timeout(drain) { try live.join() }
    let late = state.withLockedValue { state in
      state.phase = .cancelling
      return state.jobs.values.compactMap { $0 }
    }
    for job in late { job.cancel() }
    try? live.join()
  }
}
#endif
