import Coroutine
import CoroutineHTTP
import HTTPTypes

/// An answer that is not a feed.
struct RefusedDownload: Error, CustomStringConvertible {
  var status: HTTPResponse.Status
  var description: String { "the site answered \(status.code)" }
}

/// The body of a response, read where the parser asks for it.
///
/// The parser's coroutine reads from the connection itself, so a slow parser stops the connection, and with it the
/// site.
final class Download: ByteSource {
  private let response: ClientResponse
  private let progress: (Int) -> Void

  var head: HTTPResponse { response.head }

  /// Gets `url`; suspends until the head has arrived.
  ///
  /// `progress` receives the size of each part that is read.
  init(_ url: String, by client: HTTPClient, progress: @escaping (Int) -> Void) throws {
    response = try client.get(url)
    self.progress = progress
    if response.head.status != .ok { throw RefusedDownload(status: response.head.status) }
  }

  /// Fills `buffer`; suspends until bytes have arrived.
  func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int {
    let count = try response.read(into: buffer)
    if count > 0 { progress(count) }
    return count
  }
}
