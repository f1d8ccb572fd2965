#if NIO
import CTestSupport
import Coroutine
import CoroutineNIO
import Dispatch
import Glibc
import NIOCore
import NIOPosix
import Testing

/// Records when a listener has failed to accept.
private final class Recorder: ChannelInboundHandler, Sendable {
  typealias InboundIn = NIOAny

  let attempts = Locked<[NIODeadline]>([])
  let third = Gate()

  func errorCaught(context: ChannelHandlerContext, error: any Error) {
    let count = attempts.withLock { attempts in
      attempts.append(.now())
      return attempts.count
    }
    if count == 3 { third.open() }
    context.fireErrorCaught(error)
  }
}

/// Connects a socket that was created before; the system accepts it into the listener's queue.
private func connect(_ socket: Int32, _ address: NIOCore.SocketAddress) {
  let status = address.withSockAddr { Glibc.connect(socket, $0, socklen_t($1)) }
  precondition(status == 0, "connect: errno \(errno)")
}

@Suite("Servers without descriptors", .timeLimit(.minutes(10)))
struct ShortageTests {
  @Test func `without descriptors a server pauses, reports once, and accepts again`() async {
    await #expect(processExitsWith: .success) {
      try await onWorker { group in
        let reports = Locked<[String]>([])
        let again = Gate()
        let recorder = Recorder()
        let server = try Running(
          group,
          onError: { error, channel in
            #expect((error as? IOError)?.errnoCode == EMFILE)
            #expect(channel.parent == nil)
            let count = reports.withLock { reports in
              reports.append("\(error)")
              return reports.count
            }
            if count == 2 { again.open() }
          },
          echo
        )
        // Dispatch makes its descriptors for the runtime's first timer on a thread of its own, and ends a process that
        // has none for them: when a timer has fired, it has them all.
        let (timer, hasFired) = (DispatchSource.makeTimerSource(), Gate())
        timer.setEventHandler { hasFired.open() }
        timer.schedule(deadline: .now() + .milliseconds(1))
        timer.activate()
        try hasFired.pass()
        timer.cancel()
        // In front of the server's own handler: an attempt is recorded before the pause that follows it begins.
        try co_await(server.listener.pipeline.addHandler(recorder, position: .first))
        let clients = (0..<2).map { _ in socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0) }
        for (index, client) in clients.enumerated() {
          // No number is below this limit. Taking all descriptors would not do: another thread, the watchdog's say, may
          // have a file open for a moment, whose number is free again afterwards.
          let usual = cts_limit_descriptors(0)
          connect(client, server.address)
          if index == 0 {
            try recorder.third.pass()
            #expect(reports.current.count == 1)
            let attempts = recorder.attempts.current
            // It does not try again and again: NIO's timers are never early.
            for (attempt, next) in zip(attempts, attempts.dropFirst()) { #expect(next - attempt >= .seconds(1)) }
          } else {
            // A connection was accepted in between, so this is another shortage.
            try again.pass()
          }
          _ = cts_limit_descriptors(usual)
          #expect(write(client, "x", 1) == 1)
          var byte: UInt8 = 0
          try co_untilReadable(client)
          #expect(read(client, &byte, 1) == 1 && byte == UInt8(ascii: "x"))
        }

        // A server that pauses ends as every other one does.
        let last = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        let count = recorder.attempts.current.count
        let usual = cts_limit_descriptors(0)
        connect(last, server.address)
        while recorder.attempts.current.count == count { try co_yield() }
        for client in clients { close(client) }
        try server.stop()
        _ = cts_limit_descriptors(usual)
        close(last)
        #expect(reports.current.count == 3)
      }
    }
  }
}
#endif
