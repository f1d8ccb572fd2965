import NIOCore
public import NIOHTTP1

/// An error that a handler throws to answer with a status.
public struct HTTPStatusError: Error, CustomStringConvertible {
  /// The status of the response.
  public var status: HTTPResponseStatus
  /// The text of the response.
  public var message: String

  /// Creates the error; the status's reason is the message if none is given.
  public init(_ status: HTTPResponseStatus, _ message: String? = nil) {
    self.status = status
    self.message = message ?? status.reasonPhrase
  }

  /// The status and the message.
  public var description: String { "\(status.code): \(message)" }
}

/// An error of a request that the server refuses, or of a response that a handler has not framed well.
public enum HTTPServerError: Error, Equatable {
  /// The request is not HTTP/1.1 or HTTP/1.0.
  case malformed(String)
  /// The request has another major version than 1.
  case unsupportedVersion
  /// The request has a header `transfer-encoding` that is not exactly `chunked`.
  case unsupportedTransferEncoding
  /// The head is larger than ``HTTPLimits/headSize``.
  case headTooLarge
  /// The body is larger than the limit, in bytes.
  case bodyTooLarge(limit: Int)
  /// The client has sent nothing for ``HTTPLimits/pause``.
  case bodyLate
  /// The client has ended its output within the body.
  case bodyIncomplete
  /// The client expects something other than 100-continue.
  case unknownExpectation
  /// The request or the response was used after its end.
  case exchangeEnded
  /// The head of the response was sent before.
  case headSent
  /// An earlier write of the response has failed.
  case responseBroken
  /// The body has another length than the response's `content-length`.
  case contentLength(declared: Int, written: Int)
  /// The client has taken no byte of the response for ``HTTPLimits/pause``.
  case clientStalled

  /// The status that tells the client of the error; 500 for errors of a handler.
  public var status: HTTPResponseStatus {
    switch self {
    case .malformed, .bodyIncomplete: .badRequest
    case .unsupportedVersion: .httpVersionNotSupported
    case .unsupportedTransferEncoding: .notImplemented
    case .headTooLarge: .requestHeaderFieldsTooLarge
    case .bodyTooLarge: .payloadTooLarge
    case .bodyLate: .requestTimeout
    case .unknownExpectation: .expectationFailed
    case .exchangeEnded, .headSent, .responseBroken, .contentLength, .clientStalled: .internalServerError
    }
  }

  /// Whether the client has caused the error.
  var isOfClient: Bool { status != .internalServerError || self == .clientStalled }

  init(_ error: HTTPParserError) {
    self =
      switch error {
      case .headerOverflow: .headTooLarge
      case .invalidVersion: .unsupportedVersion
      case .invalidEOFState: .bodyIncomplete
      default: .malformed("\(error)")
      }
  }
}
