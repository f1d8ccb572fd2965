#if Demo
import Coroutine
import FlyingFox
import Foundation
import Testing

@testable import CoroutineDemo

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

@Suite(.timeLimit(.minutes(10))) struct `Answers that are read while they arrive` {
  /// Returns the answer to a request for the server's root.
  private static func read(from server: TestServer, longest: Int) async throws -> [UInt8] {
    let streams = HTTPStreams(connections: 1, longest: longest)
    let request = URLRequest(url: server.url)
    let reading = co_launch {
      let stream = try streams.open(request)
      defer { stream.close() }
      let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 1_000, alignment: 1)
      defer { buffer.deallocate() }
      var bytes: [UInt8] = []
      while case let count = try stream.body.read(into: buffer), count > 0 { bytes += buffer[..<count] }
      return bytes
    }
    let result: Result<[UInt8], any Error>
    do {
      result = .success(try await reading.value)
    } catch {
      result = .failure(error)
    }
    await server.stop()
    #expect(streams.close(within: 60))
    return try result.get()
  }

  private static let text = Array(String(repeating: "All quiet at the harbour. ", count: 1_000).utf8)

  @Test func `come unpacked where they were sent compressed`() async throws {
    let asked = Locked("")
    let server = try await TestServer { request in
      asked.withLock { $0 = request.headers[HTTPHeader("Accept-Encoding")] ?? "" }
      let headers: HTTPHeaders = [HTTPHeader("Content-Encoding"): "gzip"]
      return HTTPResponse(statusCode: .ok, headers: headers, body: try Gzip.packed(Data(Self.text)))
    }
    #expect(try await Self.read(from: server, longest: 1_000_000) == Self.text)
    #expect(asked.withLock { $0.contains("gzip") })
  }

  @Test func `are given up where they are longer than they may be`() async throws {
    let server = try await TestServer { _ in HTTPResponse(statusCode: .ok, body: Data(Self.text)) }
    await #expect(throws: SpoolOverflow(longest: 20_000)) { try await Self.read(from: server, longest: 20_000) }
  }

  @Test func `fail with what broke them off, after all that came before`() async throws {
    let server = try await TestServer { _ in
      let body = PacedBody(data: Data(Self.text), piece: 1_024, breaksOffAfter: 10_000)
      return HTTPResponse(statusCode: .ok, body: HTTPBodySequence(from: body, count: Self.text.count))
    }
    await #expect(throws: HTTPError.self) { try await Self.read(from: server, longest: 1_000_000) }
  }
}
#endif
