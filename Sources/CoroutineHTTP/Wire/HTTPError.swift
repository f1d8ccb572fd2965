#if HTTP
import CLLHTTP
import Coroutine
public import HTTPTypes

/// What the other side did, or what a handler asked for that HTTP does not have.
///
/// Two errors are equal if they have the same ``code``.
public struct HTTPError: Error, Equatable, CustomStringConvertible {
  /// The rule that was broken: a name of llhttp, as `HPE_INVALID_CHUNK_SIZE`, or one of this library, in capitals.
  public let code: String
  /// The status that answers it, if a client has caused it; 500 if a handler has.
  let status: HTTPResponse.Status
  private let sentence: String
  /// Whether a client of this program has met it: a handler that passes it on has failed, and its own client has not.
  private var isOfUpstream = false

  init(_ code: String, _ status: HTTPResponse.Status, _ sentence: String) {
    self.code = code
    self.status = status
    self.sentence = sentence
  }

  /// A sentence that says what happened, and what to do.
  public var description: String { "\(sentence) (\(code))" }

  /// Whether both errors have the same code.
  public static func == (one: HTTPError, other: HTTPError) -> Bool { one.code == other.code }

  /// Matches a caught error: `catch HTTPError.bodyTooLarge`.
  public static func ~= (pattern: HTTPError, error: any Error) -> Bool { error as? HTTPError == pattern }

  /// Whether a client has caused the error; otherwise it is one of the handler.
  var isOfClient: Bool { !isOfUpstream && (status.code < 500 || status.code == 501 || status.code == 505) }

  /// Runs a part of an HTTP client, whose errors are those of a server that was asked.
  static func ofUpstream<R: ~Copyable>(_ body: () throws -> R) throws -> R {
    do { return try body() } catch var error as HTTPError {
      error.isOfUpstream = true
      throw error
    }
  }
}

extension HTTPError {
  /// The error of a message that cannot be parsed.
  static func malformed(_ message: UnsafePointer<chttp_message>) -> HTTPError {
    let code = String(cString: message.pointee.error)
    return switch message.pointee.refusal {
    case CHTTP_UNKNOWN_METHOD: HTTPError(code, .notImplemented, "the method is unknown; use one that is registered")
    case CHTTP_VERSION: HTTPError(code, .httpVersionNotSupported, "the version is not served; use HTTP/1.1")
    case CHTTP_TRANSFER_CODING:
      HTTPError(code, .notImplemented, "the transfer coding is not served; send the body chunked or with its length")
    case CHTTP_NO_MEMORY: noMemory
    default: malformed(code)
    }
  }

  static func malformed(_ code: String) -> HTTPError {
    HTTPError(code, .badRequest, "the other side's message is not HTTP/1.1; correct the program that sends it")
  }

  /// The head of a message is larger than its limit.
  public static let headTooLarge = HTTPError(
    "HEAD_TOO_LARGE",
    .requestHeaderFieldsTooLarge,
    "the head is too large; send fewer fields, or raise headSize"
  )
  /// A body is larger than its limit.
  public static let bodyTooLarge = HTTPError(
    "BODY_TOO_LARGE",
    .contentTooLarge,
    "the body is larger than its limit; send less, or raise the limit"
  )
  /// A head did not arrive in time.
  public static let headLate = HTTPError(
    "HEAD_LATE",
    .requestTimeout,
    "the head did not arrive in time; send it at once, or raise headTime"
  )
  /// A body paused for too long.
  public static let bodyLate = HTTPError(
    "BODY_LATE",
    .requestTimeout,
    "the body paused for too long; send it steadily, or raise the pause"
  )
  /// The stream ended within a body.
  public static let bodyIncomplete = HTTPError(
    "BODY_INCOMPLETE",
    .badRequest,
    "the stream ended within the body; the other side closed too early"
  )
  /// The stream ended within a head.
  public static let headIncomplete = HTTPError(
    "HEAD_INCOMPLETE",
    .badRequest,
    "the stream ended within the head; the other side closed too early"
  )
  /// The other side took no byte for too long.
  public static let stalled = HTTPError(
    "STALLED",
    .requestTimeout,
    "the other side took no byte for too long; it hangs, or the pause is too short"
  )
  /// The client closed its connection before the answer; its handler is cancelled.
  public static let peerHasGone = HTTPError(
    "PEER_HAS_GONE",
    .requestTimeout,
    "the client closed its connection before the answer; nobody reads it"
  )
  static let headSent = HTTPError(
    "HEAD_SENT",
    .internalServerError,
    "the response has begun already; set status and fields before the first byte"
  )
  static let responseEnded = HTTPError(
    "RESPONSE_ENDED",
    .internalServerError,
    "the response has ended already; write nothing after send or finish"
  )
  static let invalidField = HTTPError(
    "INVALID_RESPONSE_FIELD",
    .internalServerError,
    "a field of the response has a control character, which would split it; remove the character"
  )
  static let invalidStatus = HTTPError(
    "INVALID_RESPONSE_STATUS",
    .internalServerError,
    "the status of a response is 200 to 999, with a phrase of one line; interim responses are the server's, and "
      + "`upgrade` sends 101"
  )
  static func badTrailer(_ name: HTTPField.Name) -> HTTPError {
    HTTPError(
      "INVALID_TRAILER",
      .internalServerError,
      "a client needs \(name.rawName) before the body, and refuses it behind it; set it in `fields`, or leave it out"
    )
  }
  /// The client has not asked for the upgrade that the handler makes; 426 says to which protocol, and 400 if none is
  /// named.
  static func notUpgraded(namesProtocol: Bool) -> HTTPError {
    HTTPError(
      "NOT_AN_UPGRADE",
      namesProtocol ? .upgradeRequired : .badRequest,
      "the request asks for no upgrade that is made here; send HTTP/1.1, `connection: upgrade` and `upgrade`"
    )
  }
  static func notSwitched(_ code: Int) -> HTTPError {
    HTTPError(
      "NOT_AN_UPGRADE",
      .badGateway,
      "the server answered the upgrade with \(code), and goes on with HTTP; look at the response before `upgrade`"
    )
  }
  static let noMemory = HTTPError("NO_MEMORY", .serviceUnavailable, "there was no memory for the message's fields")
  /// As ``headTooLarge``, of a response that a client reads.
  static let headOfResponseTooLarge = HTTPError(
    "HEAD_TOO_LARGE",
    .badGateway,
    "the head of the response has more than \(ClientConnection.mostHead) bytes; its server must send fewer fields"
  )
  /// The server redirects without end.
  public static let tooManyRedirects = HTTPError(
    "TOO_MANY_REDIRECTS",
    .badGateway,
    "the server redirects without end; check the URL, or raise redirects"
  )
  static func badURL(_ url: String) -> HTTPError {
    HTTPError("INVALID_URL", .internalServerError, "\(url.urlForLines) is no URL of http or https; correct it")
  }
  /// A path that is joined to a host would be another host, or another request.
  static func badPath(_ path: String) -> HTTPError {
    HTTPError(
      "INVALID_URL",
      .internalServerError,
      "the path \(path.urlForLines) is none; it must begin with / and be ASCII without spaces and fragment, so encode it"
    )
  }
  /// RFC 9110, 4.2.4: in a URL from elsewhere, a user most often hides which server is asked.
  static func userInURL(_ url: String) -> HTTPError {
    HTTPError(
      "INVALID_URL",
      .internalServerError,
      "\(url.urlForLines) has a user; send it in the field authorization, and leave it out of the URL"
    )
  }
  static func badRedirect(_ location: String, from url: String) -> HTTPError {
    HTTPError(
      "INVALID_REDIRECT",
      .badGateway,
      "\(url.urlForLines) redirects to \(location.urlForLines), which cannot be followed; ask without redirects"
    )
  }
  static func badProxy(_ text: String) -> HTTPError {
    HTTPError(
      "INVALID_PROXY",
      .badGateway,
      "\(text.urlForLines) is no proxy; set http_proxy and https_proxy to http://HOST:PORT, or unset them"
    )
  }
  static func proxyRefused(_ code: Int) -> HTTPError {
    HTTPError(
      "PROXY_REFUSED",
      .badGateway,
      "the proxy answered CONNECT with \(code); check https_proxy, or set no_proxy"
    )
  }
  static func length(declared: UInt64, written: UInt64) -> HTTPError {
    HTTPError(
      "WRONG_LENGTH",
      .internalServerError,
      "the body has \(written) bytes or more, and content-length says \(declared); make them equal"
    )
  }
}

// MARK: - URLs in lines

extension String {
  /// A URL, or what somebody gave for one, between quotation marks, without its user and password: every line of the
  /// library that shows a URL shows this.
  ///
  /// A text that is no URL may have them in any place. So everything up to the last `@` is left out, and what should be
  /// a port and is none.
  var urlForLines: String {
    var scheme = ""
    var rest = self[...]
    if let colon = utf8.firstIndex(of: UInt8(ascii: ":")), self[colon...].hasPrefix("://") {
      scheme = self[..<colon] + "://"
      rest = self[colon...].dropFirst(3)
    }
    // By bytes: with a combining mark behind it, it is another Character.
    if let at = rest.utf8.lastIndex(of: UInt8(ascii: "@")) {
      // Before the `@`, the scheme may be none.
      return "\(scheme.contains("@") ? "" : scheme)…\(rest[at...])".asName.quoted
    }
    let end = rest.firstIndex { "/?#".contains($0) } ?? rest.endIndex
    let authority = rest[..<end]
    if let colon = authority.lastIndex(of: ":"), !authority[colon...].contains("]") {
      let port = authority[colon...].dropFirst()
      if !port.utf8.allSatisfy({ (0x30...0x39).contains($0) }) {
        return "\(scheme)\(authority[...colon])…\(rest[end...])".asName.quoted
      }
    }
    return asName.quoted
  }

  private var quoted: String { "\"\(self)\"" }
}

// MARK: - Statuses

/// The error by which a handler answers with a status.
///
/// The response has the fields that were set before the error: of access control, of authentication, `retry-after`.
/// Those that describe another body are left out.
///
/// <!-- compiled: Tests/CoroutineHTTPTests/PageTests.swift -->
/// ```swift
/// default: throw HTTPStatusError(.notFound, "There is nothing at \(request.path).\n")
/// ```
public struct HTTPStatusError: Error, CustomStringConvertible {
  /// The status of the response.
  public let status: HTTPResponse.Status
  /// The text of the response's body.
  public let message: String

  /// Creates the error; without a message the body is the status's phrase.
  public init(_ status: HTTPResponse.Status, _ message: String? = nil) {
    self.status = status
    self.message = message ?? status.reasonPhrase
  }

  /// The status and the message.
  public var description: String { "\(status.code): \(message)" }
}
#endif
