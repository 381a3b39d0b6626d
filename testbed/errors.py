"""The base of errors that a user can mend."""


class UserError(RuntimeError):
    """Something a user can mend: the text says what is wrong and what to do, and is shown without a traceback."""


class Stopped(BaseException):
    """SIGINT or SIGTERM arrived. Not an Exception: nothing on the way may swallow it."""
