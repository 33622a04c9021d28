"""The agent of before.py, served by apcore-a2a. The executor is the same object. See README.md.

python -m examples.migration.after
apcore-a2a send http://127.0.0.1:8000 hello
"""

from apcore_a2a import create_app, serve
from examples.migration.before import Shout

app = create_app(Shout(), name="shout", version="1")  # for a server of your own: uvicorn after:app

if __name__ == "__main__":
    serve(Shout(), name="shout", version="1", host="127.0.0.1", port=8000, store="sqlite:///tasks.db")
