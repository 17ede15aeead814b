"""Downloads the Python packages whose chat templates `chat_templates.py` renders: the newest wheel and source archive of each.

Nothing is installed, and no code of a package runs. Of each archive only the files that may hold a template are kept, in an
archive of the same name: the packages take gigabytes, their templates a few megabytes. The index is the one that pip uses. A
file above MOST_BYTES is left out and named.

    python benchmarks/chat_template_packages.py packages
"""

import html.parser
import io
import os
import pathlib
import re
import sys
import tarfile
import urllib.parse
import urllib.request
import zipfile

MOST_BYTES = 300 << 20

# Packages that train, serve, convert or evaluate chat models. Many hold no template; the record names those that do.
PACKAGES = """
    trl transformers peft accelerate datasets diffusers sentence-transformers optimum optimum-intel optimum-neuron setfit
    smolagents text-generation autotrain-advanced huggingface-hub lighteval tokenizers
    vllm vllm-omni sglang aphrodite-engine lmdeploy tensorrt-llm llama-cpp-python ctransformers exllamav2 gpt4all
    xinference fschat openllm litellm mlx-lm mlx-vlm ctranslate2 ollama
    openvino-genai optimum-benchmark onnxruntime-genai litert-torch ai-edge-torch rkllm nexa
    axolotl litgpt unsloth unsloth-zoo ms-swift llamafactory torchtune llm-foundry instructlab instructlab-training
    instructlab-sdg oumi verl openrlhf skyrl cosmos-rl areal slime verifiers nemo-toolkit nemo-rl
    nemo-automodel megatron-bridge megatron-core mindformers paddleformers paddlenlp mindnlp xtuner deepspeed colossalai
    ludwig liger-kernel llmcompressor auto-gptq autoawq auto-round gptqmodel optimum-quanto
    mergekit distilabel argilla guidance outlines lm-format-enforcer instructor dspy haystack-ai langchain
    langchain-huggingface llama-index-core llama-index-llms-huggingface inspect-ai lm-eval lmms-eval opencompass deepeval
    helm crfm-helm evalplus evalscope swebench granite-io granite-common docling vllm-ascend
    transformers-js-py airllm petals swarms autogen-agentchat camel-ai letta mistral-common mistral-inference
    llmuses modelscope ktransformers easydel levanter maxtext keras-hub flair jinja2 minja chatformat
    text2text torchchat gpt-engineer sacrebleu tinker-cookbook prompttools promptflow rank-llm flagembedding mteb
    ragas llm-blender alignment-handbook fastchat dbrx lorax lmstudio anyscale ray
""".split()


# Endings of files that hold templates, and the most bytes that such a file has.
ENDINGS = (".jinja", ".jinja2", ".j2", ".json", ".py")
MOST_OF_A_FILE = 1 << 24


def may_hold_template(name, data):
    """Whether to look for templates in a file of a package."""
    suits = pathlib.PurePath(name).suffix in ENDINGS and len(data) <= MOST_OF_A_FILE
    return suits and b"messages" in data and b"{%" in data


def index_url():
    from pip._internal.models.index import PyPI

    return os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")


class Links(html.parser.HTMLParser):
    """The files of an index page, by name."""

    def __init__(self, page):
        super().__init__()
        self.page, self.files = page, {}

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a" and "href" in attributes and "data-yanked" not in attributes:
            url = urllib.parse.urldefrag(urllib.parse.urljoin(self.page, attributes["href"])).url
            self.files[urllib.parse.unquote(url.rsplit("/", 1)[-1])] = url


def files_of(package):
    page = f"{index_url()}/{package}/"
    with urllib.request.urlopen(page, timeout=60) as answer:
        links = Links(page)
        links.feed(answer.read().decode())
    return links.files


def version(name):
    """The numbers of a file's version, or None where it is no final release."""
    found = re.match(r".*?-v?(\d+(?:\.\d+)*)(?:\.post\d+)?(?:-|\.tar\.gz$|\.zip$)", name)
    return tuple(map(int, found[1].split("."))) if found else None


def newest(files, endings):
    """A file of the newest version that has one; wheels for this kind of machine come first."""
    named = [name for name in files if name.endswith(endings) and version(name)]
    suits = lambda name: ("none-any" in name, "x86_64" in name and "linux" in name)
    return max(named, key=lambda name: (version(name), suits(name), name), default=None)


def only_templates(archive, is_zip):
    """An archive of the files in `archive` that may hold a template, as bytes."""
    out = io.BytesIO()
    if is_zip:
        with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as kept:
            for name in whole.namelist():
                if may_hold_template(name, data := whole.read(name)):
                    kept.writestr(name, data)
    else:
        with tarfile.open(archive) as whole, tarfile.open(fileobj=out, mode="w:gz") as kept:
            for member in whole:
                if member.isfile() and may_hold_template(member.name, data := whole.extractfile(member).read()):
                    kept.addfile(member, io.BytesIO(data))
    return out.getvalue()


def download(name, url, folder):
    path = folder / name
    if path.exists():
        return f"has {name}"
    part = path.with_name(name + ".part")
    with urllib.request.urlopen(url, timeout=120) as answer:
        size = int(answer.headers.get("Content-Length") or 0)
        if size > MOST_BYTES:
            return f"left out {name}: {size >> 20} MiB"
        with part.open("wb") as out:
            while block := answer.read(1 << 20):
                out.write(block)
    try:
        path.write_bytes(only_templates(part, path.suffix in (".whl", ".zip")))
    except (tarfile.TarError, zipfile.BadZipFile) as error:
        return f"failed {name}: {error}"
    finally:
        part.unlink()
    return f"has {name}"


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for package in dict.fromkeys(PACKAGES):
        try:
            files = files_of(package)
        except (OSError, ValueError) as error:
            print(f"no package {package}: {error}", flush=True)
            continue
        for endings in ((".whl",), (".tar.gz", ".zip")):
            name = newest(files, endings)
            if name:
                try:
                    print(download(name, files[name], folder), flush=True)
                except OSError as error:
                    print(f"failed {name}: {error}", flush=True)


if __name__ == "__main__":
    main()
