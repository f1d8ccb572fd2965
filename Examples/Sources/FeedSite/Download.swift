import Coroutine
import CoroutineNIO
import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix

/// An answer that is not a feed.
struct RefusedDownload: Error, CustomStringConvertible {
  var status: HTTPResponseStatus
  var description: String { "the site answered \(status.code)" }
}

/// The body of a response, read where the reader runs, while the connection's coroutine runs on its event loop.
///
/// Four parts lie between them at most. So a slow parser stops the connection, and with it the site.
final class Download: ByteSource {
  private typealias Connection = NIOCoroutineChannel<HTTPClientResponsePart, HTTPClientRequestPart>

  let head: HTTPResponseHead
  private let parts: Coroutine.Channel<ByteBuffer>
  private var current = ByteBuffer()
  private let progress: (Int) -> Void

  private init(_ head: HTTPResponseHead, _ parts: Coroutine.Channel<ByteBuffer>, _ progress: @escaping (Int) -> Void) {
    (self.head, self.parts, self.progress) = (head, parts, progress)
  }

  /// Gets `path` from a server, runs `body` with the response, and returns its result.
  ///
  /// Suspends until the head has arrived. `progress` receives the size of each part that the body has read.
  static func with<Output>(
    _ path: String,
    of address: SocketAddress,
    on group: any EventLoopGroup,
    progress: @escaping (Int) -> Void,
    _ body: (Download) throws -> Output
  ) throws -> Output {
    try co_scope { scope in
      let head = Promise<HTTPResponseHead>()
      let parts = Coroutine.Channel<ByteBuffer>(4)
      let connection = scope.launch(name: "GET \(path)") {
        do {
          try fetch(path, of: address, on: group, head, parts)
          parts.close()
        } catch {
          head.reject(error)
          parts.close(error)
        }
      }
      defer { connection.cancel() }
      return try body(Download(try co_await(head), parts, progress))
    }
  }

  private static func fetch(
    _ path: String,
    of address: SocketAddress,
    on group: any EventLoopGroup,
    _ head: Promise<HTTPResponseHead>,
    _ parts: Coroutine.Channel<ByteBuffer>
  ) throws {
    @Sendable func addCodec(_ channel: any NIOCore.Channel) throws {
      try channel.pipeline.syncOperations.addHTTPClientHandlers()
    }
    let bootstrap = ClientBootstrap(group: group)
    try bootstrap.withConnection(to: address, configure: addCodec) { (connection: Connection) in
      let host = "\(address.ipAddress ?? "localhost"):\(address.port ?? 80)"
      let headers: HTTPHeaders = ["host": host, "connection": "close"]
      try connection.write(.head(.init(version: .http1_1, method: .GET, uri: path, headers: headers)))
      try connection.write(.end(nil))
      while let part = try connection.read() {
        switch part {
        case .head(let response):
          guard response.status == .ok else { throw RefusedDownload(status: response.status) }
          head.fulfill(response)
        case .body(let bytes): try parts.send(bytes)
        case .end: return
        }
      }
      throw ChannelError.inputClosed
    }
  }

  /// Fills `buffer`; suspends until bytes have arrived.
  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    while current.readableBytes == 0 {
      guard let next = try parts.receive() else { return 0 }
      current = next
      progress(next.readableBytes)
    }
    let count = min(buffer.count, current.readableBytes)
    current.readWithUnsafeReadableBytes { bytes in
      buffer.copyMemory(from: UnsafeRawBufferPointer(rebasing: bytes[..<count]))
      return count
    }
    return count
  }
}
