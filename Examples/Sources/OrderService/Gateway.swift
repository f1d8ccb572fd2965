import Coroutine
import CoroutineHTTP
import Foundation
import HTTPTypes

/// The service that sends the mails, over HTTP.
///
/// Each mail has a key of its own in `idempotency-key`, so that the gateway drops a mail that it gets again.
final class Gateway: Sendable {
  private let url: URL
  private let client = HTTPClient()

  /// Why a mail was not taken; the outbox tries again.
  struct RefusedMailError: Error, CustomStringConvertible {
    var status: HTTPResponse.Status
    var description: String { "the gateway has answered \(status.code)" }
  }

  init(_ url: URL) { self.url = url }

  /// Gives a mail to the gateway; suspends until it has answered.
  func deliver(_ mail: Mail, _ key: Int64) throws {
    let path = (url.path().isEmpty ? "/" : url.path()) + (url.query().map { "?\($0)" } ?? "")
    let authority = (url.host() ?? "") + (url.port.map { ":\($0)" } ?? "")
    var request = HTTPRequest(method: .post, scheme: url.scheme, authority: authority, path: path)
    request.headerFields[.contentType] = "application/json"
    request.headerFields[.idempotencyKey] = "\(key)"
    // The same mail is the same bytes each time: gateways compare what comes with a key that they know.
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.sortedKeys]
    let body = try Array(encoder.encode(mail))
    // A gateway that does not answer is asked again later.
    let answer = try co_timeout(.seconds(10)) { [client] in
      let response = try client.send(request, body: body)
      // Read to its end, so that the connection can be used again.
      _ = try response.collect(upTo: 65_536)
      return response.head.status
    }
    guard answer.kind == .successful else { throw RefusedMailError(status: answer) }
  }
}

extension HTTPField.Name {
  /// `idempotency-key`, as payment services use it.
  static let idempotencyKey = Self("idempotency-key")!
}
