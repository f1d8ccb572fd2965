#if Demo
import FlyingFox
import Foundation
import Testing

@testable import CoroutineDemo

/// A thousand feeds at once, under the usual limits of descriptors.
@Suite(.serialized, .timeLimit(.minutes(10))) struct `A crowd of feeds` {
  private let folder: ScratchFolder

  init() throws {
    folder = try ScratchFolder()
    // The test's own server needs a connection for each.
    DescriptorLimit.raise()
  }

  /// Reads `count` feeds of a site, in a process limited by `ulimit`.
  ///
  /// The site answers nothing before `atOnce` requests are open at the same time.
  private func read(_ count: Int, atOnce: Int, under limit: String) async throws -> (end: DemoProcess.End, most: Int) {
    let open = Locked((now: 0, most: 0))
    let allAreOpen = Event<Void>()
    let server = try await TestServer { request in
      let isLast = open.withLock {
        $0.now += 1
        $0.most = max($0.most, $0.now)
        return $0.now == atOnce
      }
      defer { open.withLock { $0.now -= 1 } }
      if isLast { allAreOpen.happen(()) }
      await allAreOpen.value
      let number = Int(request.path.split(separator: "/").last ?? "") ?? 0
      return HTTPResponse(statusCode: .ok, body: Data(SmallFeed.text("Feed \(number)", items: 0..<2).utf8))
    }
    let sources = (0..<count).map { server.url.appending(path: "feed/\($0)").absoluteString }
    let database = folder.path("feeds.sqlite")
    let arguments = ["feeds", "--jobs", "1000", "--timeout", "240", "--database", database] + sources
    let end = try await DemoProcess(arguments, limit: limit).end()
    // For requests whose client is gone.
    allAreOpen.happen(())
    await server.stop()
    return (end, open.withLock { $0.most })
  }

  @Test func `is read under a soft limit of 1,024 descriptors`() async throws {
    let (end, most) = try await read(1_000, atOnce: 1_000, under: "-Sn 1024")
    #expect(most == 1_000)
    #expect(end.status == 0, "\(end.errors.suffix(2_000))")
    #expect(end.output.contains(/\n1000 feeds +2000 +2000\b/))
    #expect(!end.errors.contains("in place of 1000"), "the soft limit was raised, so all 1,000 fit")
  }

  @Test func `is read by fewer at once under a hard limit, and that is said`() async throws {
    let (end, most) = try await read(300, atOnce: 1, under: "-n 256")
    #expect(most < 256)
    #expect(end.status == 0, "\(end.errors.suffix(2_000))")
    #expect(
      end.errors.contains(/\d+ feeds at once in place of 1000, since this process may have 256 open files; raise/)
    )
    #expect(end.output.contains(/\n300 feeds +600 +600\b/))
  }

  @Test func `a connection that failed for want of a descriptor names the limit, any other its own reason`() {
    let error = URLError(.cannotConnectToHost)
    #expect(HTTPStreams.reason(error, descriptorsLeft: 0) == DescriptorLimit.exceeded)
    #expect(HTTPStreams.reason(error, descriptorsLeft: 1) == error.localizedDescription)
    #expect(DescriptorLimit.exceeded.contains("raise it with ulimit -n"))
  }

  @Test func `an error for want of a descriptor names the limit`() {
    let error = OutputError(name: "the temporary directory", code: EMFILE)
    #expect(
      "\(error)".hasSuffix(": too many open files: the limit is \(DescriptorLimit.count); raise it with ulimit -n")
    )
  }
}
#endif
