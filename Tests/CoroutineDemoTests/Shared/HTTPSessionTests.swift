#if Demo
import Coroutine
import FlyingFox
import Foundation
import Testing

@testable import CoroutineDemo

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

@Suite(.timeLimit(.minutes(10))) struct `HTTP from a coroutine` {
  @Test func `an answer comes back as a value, a refusal as an error with the site's words`() async throws {
    let server = try await TestServer { request in
      request.path == "/good"
        ? HTTPResponse(statusCode: .ok, body: Data("hello".utf8))
        : HTTPResponse(statusCode: .notFound, body: Data("not here\n".utf8))
    }
    let client = HTTPSession()
    let good = server.url.appending(path: "good")
    #expect(try await co_launch { try client.send(URLRequest(url: good)) }.value == Data("hello".utf8))
    let bad = server.url.appending(path: "bad")
    let job = co_launch { try client.send(URLRequest(url: bad)) }
    await #expect(throws: HTTPError.refused(bad, status: 404, message: "not here")) { try await job.value }
    await server.stop()
  }

  @Test func `a cancelled coroutine gets the reason, and its request is called off`() async throws {
    let arrived = Event<Void>()
    let server = try await TestServer { _ in
      arrived.happen(())
      try await Task.sleep(for: .seconds(3600))
      return HTTPResponse(statusCode: .ok)
    }
    let client = HTTPSession()
    let url = server.url
    let job = co_launch { try client.send(URLRequest(url: url)) }
    await arrived.value
    job.cancel(Interrupted(signal: SIGINT))
    await #expect(throws: Interrupted(signal: SIGINT)) { try await job.value }
    // The server would hold the request for an hour. On a separate thread, because this one must not block.
    let isIdle = Event<Bool>()
    Thread.detachNewThread { isIdle.happen(client.becomesIdle(within: 60)) }
    #expect(await isIdle.value)
    await server.stop()
  }

  @Test func `off a coroutine nothing is sent`() async throws {
    let requests = Locked(0)
    let server = try await TestServer { _ in
      requests.withLock { $0 += 1 }
      return HTTPResponse(statusCode: .ok)
    }
    let client = HTTPSession()
    #expect {
      try client.send(URLRequest(url: server.url))
    } throws: { error in
      if case CoroutineError.notInCoroutine = error { true } else { false }
    }
    #expect(client.close(within: 60))
    await server.stop()
    #expect(requests.withLock { $0 } == 0)
  }
}
#endif
