// Elements. Texts become text nodes: what users write is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const HTML = "http://www.w3.org/1999/xhtml";

// Creates an element. Functions are listeners. Leaves out attributes that are false or absent.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElementNS(["svg", "path"].includes(tag) ? SVG : HTML, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value || value === 0) element.setAttribute(name, value);
  }
  return fill(element, ...children);
}

// Replaces the children of an element. Leaves out those that are false or absent.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(2).filter((child) => child || child === 0));
  return element;
}
