#if NIO
import Coroutine
import CoroutineNIO
import Glibc
import NIOCore
import NIOEmbedded
import NIOPosix
import Testing

/// Returns a channel of one of the group's loops, whose peer is nobody.
private func lonelyChannel(
  _ group: any EventLoopGroup,
  _ initialize: @escaping @Sendable (any NIOCore.Channel) throws -> Void = { _ in }
) async throws -> any NIOCore.Channel {
  var ends: [Int32] = [0, 0]
  precondition(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &ends) == 0)
  return try await ClientBootstrap(group: group).channelInitializer { channel in
    channel.eventLoop.makeCompletedFuture { try initialize(channel) }
  }.withConnectedSocket(ends[0]).get()
}

@Suite("Misuse of a channel", .timeLimit(.minutes(10)))
struct MisuseTests {
  @Test func `wrapping a channel on another thread ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await withLoops { group in
        let channel = try await lonelyChannel(group)
        _ = try Bytes(wrapping: channel)
      }
    }
    #expect(died?.said("must be called on the channel's event loop") == true)
  }

  @Test func `wrapping a channel twice ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onOwnThread {
        let channel = EmbeddedChannel()
        _ = try Bytes(wrapping: channel)
        _ = try NIOCoroutineChannel<String, String>(wrapping: channel)
      }
    }
    #expect(died?.said("was wrapped in a NIOCoroutineChannel before") == true)
  }
}
#endif
